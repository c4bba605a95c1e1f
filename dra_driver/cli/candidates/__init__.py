"""Words that can complete a command line: commands, options, and names of shipped profiles and of cluster objects.

In: the words up to the cursor. Out: candidates. Names come from the cluster if it answers within two seconds.
"""
