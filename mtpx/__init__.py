"""Run models that carry multi-token-prediction heads, and measure whether it pays."""
