"""Real servers for tracking stores, to be used, killed and disturbed on this machine.

They listen on the loopback interface only. `python3 -m dev.servers` keeps a PostgreSQL; the MLflow server and
the proxy in front of it live as long as the test or benchmark that starts them.
"""
