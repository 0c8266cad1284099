"""The part of a page with a run's answers: problems by step, texts, and tokens with what a rule did to them."""
