"""The paper's tables and figures as declarations, and the runner that fills them."""
