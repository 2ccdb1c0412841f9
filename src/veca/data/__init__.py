"""Pictures: from any file or array to the numbers a backbone sees, and back to the pixels."""
