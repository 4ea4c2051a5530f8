"""From texts to tokens and contextual features."""
