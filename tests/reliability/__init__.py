"""Claims about whole runs when processes, disks, files and users fail."""
