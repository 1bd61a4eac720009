package pg

import (
	"net"
	"time"
)

// A network that drops packets gives no error: without these bounds a dead connection looks alive for hours.
const (
	// silence is how long sent data may stay unacknowledged, where supported (Linux).
	silence = 10 * time.Second
	// An idle connection is probed after keepAliveIdle, then every keepAliveInterval, keepAliveCount times.
	keepAliveIdle     = 5 * time.Second
	keepAliveInterval = 2 * time.Second
	keepAliveCount    = 3
)

// dialer makes connections that detect a silent network. A proxy that still acknowledges packets is only
// detected by the deadline of each round trip (internal/commit).
var dialer = &net.Dialer{
	KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: keepAliveIdle, Interval: keepAliveInterval,
		Count: keepAliveCount},
	Control: control,
}
