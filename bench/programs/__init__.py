"""Programs as users write them, in kernmill and in torch: time of captured, cold, warm and eager calls, and memory."""
