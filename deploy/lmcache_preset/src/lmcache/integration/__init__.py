"""The folder of the preset's path; holds nothing itself."""
