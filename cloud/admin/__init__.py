"""The admin API: releases known, the active one of each model, and changing it. See docs/admin.md."""
