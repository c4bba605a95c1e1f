"""AMD's GPUs (Instinct, Radeon, APUs), from sysfs and the KFD topology alone: no library is loaded."""
