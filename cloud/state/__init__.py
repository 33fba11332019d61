"""State that several processes share: releases known, which is active. See docs/state.md."""
