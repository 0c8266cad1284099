"""DAPO-Math-17k and AIME in verl's layout (`prepare`, `manifest`), and the grading of answers (`grading`, `reward`)."""
