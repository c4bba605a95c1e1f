"""`dra-driver usage`: its arguments, table, spreadsheet and page."""
