"""The command line: what a person sees. Every command is one file, imported when it is called.

The agent is not among them: it has an entry of its own (`dra_driver.agent`), so that it loads none of this.
"""
