"""The second cache manager: layer groups, sliding windows, pages per chunk, replays."""
