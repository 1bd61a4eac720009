package ledger

import "time"

func backOff() { time.Sleep(time.Millisecond) }
