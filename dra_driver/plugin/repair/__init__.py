"""What happens besides the kubelet's calls: crashes are repaired, leftovers reaped, and a lost ledger is read back."""
