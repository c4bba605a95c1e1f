"""What the API server checks and changes before it stores an object, in one module for each kind or value."""
