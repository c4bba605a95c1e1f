"""What commands and pages compute: worlds, fleets, verdicts and reports, as frozen values and documents.

In: paths, names of profiles, a kubeconfig. Out: values to be shown, and their documents for programs. Reading the
command line, printing and drawing are left to `cli` and `web`.
"""
