package client

import "runtime"

// GatherLanes is how many RPCs of gathered calls are on their way at once.
const GatherLanes = gatherLanes

// InLine is how many gathered calls wait for a lane.
func InLine(c *Client) int {
	c.gather.mu.Lock()
	defer c.gather.mu.Unlock()
	return len(c.gather.line)
}

// AwaitLine returns when n calls wait for a lane.
func AwaitLine(c *Client, n int) {
	for InLine(c) < n {
		runtime.Gosched()
	}
}

// Share is how many of the calls in line go into one batch while others are on their way.
func Share(line, flying int) int {
	g := gather{flying: flying}
	for range line {
		g.line = append(g.line, new(item))
	}
	return len(g.cut())
}

// EncodeItem and BatchRequest are how gathered calls are put together.
var EncodeItem = encodeItem

// Reasons are all of reason.go.
var Reasons = []Reason{
	ReasonFieldInvalid, ReasonKeyInvalid, ReasonKeyReused, ReasonCommandTooLarge, ReasonUnauthenticated,
	ReasonPermissionDenied, ReasonBizNoExistsDifferent, ReasonAssetNotFound, ReasonAssetExistsDifferent,
	ReasonAccountNotFound, ReasonAccountExistsDifferent, ReasonTransferNotFound, ReasonHoldNotFound,
	ReasonAmountTooPrecise, ReasonAmountTooLarge, ReasonAvailableUnbounded, ReasonDestinationMissing, ReasonPageTokenInvalid,
	ReasonInsufficientFunds, ReasonBalanceConditionFailed, ReasonBalanceLimitExceeded, ReasonAccountClosed,
	ReasonAccountFrozen, ReasonAccountNotEmpty, ReasonLimitViolated, ReasonAlreadyReversed, ReasonHoldExpired,
	ReasonHoldNotHeld, ReasonCaptureExceedsHold, ReasonStaleVersion, ReasonBusy, ReasonRowsLocked,
	ReasonInternal, ReasonDatabaseUnavailable, ReasonOutcomeUnknown, ReasonNotRun, ReasonShuttingDown,
	ReasonReferenceUnresolved,
	ReasonMessageDiffers, ReasonMessageNotFound, ReasonMessageDuplicate, ReasonMessageDead, ReasonMessageNotDead, ReasonMessageBusy,
	ReasonMessageLater, ReasonMessageLeaseLost,
}
