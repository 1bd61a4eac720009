package ledger

import clock "time"

type bed struct{}

func (bed) Sleep(int) {}

func naps() {
	clock.Sleep(1) // want test-sleep
	bed{}.Sleep(1)
}
