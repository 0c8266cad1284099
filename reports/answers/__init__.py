"""The part of a page about a run's answers: problems by step, texts, and tokens with each rule's decisions."""
