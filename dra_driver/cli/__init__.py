"""The command line. Every command is one file, which is imported only when the command is called.

The agent is not among them: it has its own entry point (`dra_driver.agent`), so that it loads none of this.
"""
