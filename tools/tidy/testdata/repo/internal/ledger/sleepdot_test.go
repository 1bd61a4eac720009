package ledger

import . "time"

func dots() {
	Sleep(Second) // want test-sleep
}
