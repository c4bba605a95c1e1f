"""A checked tree in; a program that judges devices, and the values and costs behind a verdict, out."""
