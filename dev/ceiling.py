"""How long the tests and the development servers wait for anything."""

# Only a failure takes that long, on a machine many times slower than usual: it bounds what a broken build costs. Half
# an hour: 600 s were not enough for the first validation of verl with vLLM beside 20 other processes on two cores.
CEILING_SECONDS = 1800.0
