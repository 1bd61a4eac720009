package pg

import (
	"net"
	"time"
)

// A network that drops packets says nothing: without these bounds a connection is taken for alive for hours.
const (
	// silence is how long sent data may stay unacknowledged, where the system can be told (Linux).
	silence = 10 * time.Second
	// An idle connection is asked after keepAliveIdle, then every keepAliveInterval, keepAliveCount times.
	keepAliveIdle     = 5 * time.Second
	keepAliveInterval = 2 * time.Second
	keepAliveCount    = 3
)

// dialer makes connections that notice a silent network. A proxy that still acknowledges packets is noticed by the
// deadline of each round trip alone (internal/commit).
var dialer = &net.Dialer{
	KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: keepAliveIdle, Interval: keepAliveInterval,
		Count: keepAliveCount},
	Control: control,
}
