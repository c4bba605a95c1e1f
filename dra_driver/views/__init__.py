"""What commands and pages compute: worlds, fleets, verdicts and reports, as frozen values and documents.

In: paths, the names of profiles, a kubeconfig. Out: values to be drawn, and their documents for programs. Nothing here
reads a command line, prints or draws: that is left to `cli`.
"""
