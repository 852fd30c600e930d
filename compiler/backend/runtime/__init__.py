"""From written code to calls: builds, launches, measurements, and what is kept on disk."""
