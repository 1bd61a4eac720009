package ledger

// Twenty lines, the last one included.
const full = 20
