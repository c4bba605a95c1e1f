"""Metering: what the GPUs do and what they cost, by claim and pod.

    hardware's readings ──┐
    ledger's claims ──────┼──► series ──► text in memory ──► /metrics
    kubelet's pods ───────┘

A scrape reads what is in memory. Nothing here runs unless metering is on (`--telemetry`).
"""
