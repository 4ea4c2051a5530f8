"""Getting data sets from their publishers, and judging what came."""
