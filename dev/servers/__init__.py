"""The servers that a tracking store may run on, real ones, to be used, killed and disturbed on this machine.

All of them listen on the loopback interface alone. `python3 -m dev.servers` keeps a PostgreSQL; the MLflow server and
the proxy before it live as long as the test or benchmark that starts them.
"""
