"""What every wing needs: names, errors, quantities, versions. It imports nothing of the driver."""
