package client

// Reason is the machine-readable name of why a call failed. It is an error, so that errors.Is can look
// for it:
//
//	if errors.Is(err, client.ReasonInsufficientFunds) { … }
//
// A newer server may send reasons that are not listed here; compare those with Reason("NAME").
type Reason string

// Error is the name.
func (r Reason) Error() string { return string(r) }

// Bad requests: not recorded under the key, which may run again with a corrected request.
const (
	ReasonFieldInvalid           Reason = "FIELD_INVALID"           // a field breaks a rule: see Error.Fields
	ReasonKeyInvalid             Reason = "IDEMPOTENCY_KEY_INVALID" // not 1 to 255 printable ASCII characters
	ReasonKeyReused              Reason = "IDEMPOTENCY_KEY_REUSED"  // the key was used with other content
	ReasonCommandTooLarge        Reason = "COMMAND_TOO_LARGE"
	ReasonUnauthenticated        Reason = "UNAUTHENTICATED"   // no good API key
	ReasonPermissionDenied       Reason = "PERMISSION_DENIED" // the API key's role is too small
	ReasonBizNoExistsDifferent   Reason = "BIZ_NO_EXISTS_DIFFERENT"
	ReasonAssetNotFound          Reason = "ASSET_NOT_FOUND"
	ReasonAssetExistsDifferent   Reason = "ASSET_EXISTS_DIFFERENT"
	ReasonAccountNotFound        Reason = "ACCOUNT_NOT_FOUND"
	ReasonAccountExistsDifferent Reason = "ACCOUNT_EXISTS_DIFFERENT"
	ReasonTransferNotFound       Reason = "TRANSFER_NOT_FOUND"
	ReasonHoldNotFound           Reason = "HOLD_NOT_FOUND"
	ReasonAmountTooPrecise       Reason = "AMOUNT_TOO_PRECISE"
	ReasonAmountTooLarge         Reason = "AMOUNT_TOO_LARGE"
	ReasonAvailableUnbounded     Reason = "AVAILABLE_UNBOUNDED"
	ReasonDestinationMissing     Reason = "DESTINATION_MISSING"
	ReasonReferenceUnresolved    Reason = "REFERENCE_UNRESOLVED" // of an operation of Execute
	ReasonPageTokenInvalid       Reason = "PAGE_TOKEN_INVALID"   // not made by this list with these parameters
	ReasonMessageDiffers         Reason = "MESSAGE_DIFFERS"      // the message id came with another content
	ReasonMessageNotFound        Reason = "MESSAGE_NOT_FOUND"
)

// Duplicates: not recorded. What was asked for has been done before; be silent.
const ReasonMessageDuplicate Reason = "MESSAGE_DUPLICATE" // it has had its effect: acknowledge

// Business refusals: recorded under the key. The same key gets the same refusal for as long as the key
// lives, so a new decision needs a new key.
const (
	ReasonInsufficientFunds      Reason = "INSUFFICIENT_FUNDS"       // State has "available"
	ReasonBalanceConditionFailed Reason = "BALANCE_CONDITION_FAILED" // less than Condition.balance_at_least
	ReasonBalanceLimitExceeded   Reason = "BALANCE_LIMIT_EXCEEDED"   // above the account's greatest balance
	ReasonAccountClosed          Reason = "ACCOUNT_CLOSED"
	ReasonAccountFrozen          Reason = "ACCOUNT_FROZEN"
	ReasonAccountNotEmpty        Reason = "ACCOUNT_NOT_EMPTY"
	ReasonLimitViolated          Reason = "LIMIT_VIOLATED"
	ReasonAlreadyReversed        Reason = "ALREADY_REVERSED"
	ReasonHoldExpired            Reason = "HOLD_EXPIRED"
	ReasonHoldNotHeld            Reason = "HOLD_NOT_HELD" // captured or released already
	ReasonCaptureExceedsHold     Reason = "CAPTURE_EXCEEDS_HOLD"
	ReasonMessageDead            Reason = "MESSAGE_DEAD" // a person looks at it: acknowledge
	ReasonMessageNotDead         Reason = "MESSAGE_NOT_DEAD"
)

// Conflicts: not recorded. BUSY and ROWS_LOCKED are retried by this client; the others want a new look
// before the next try.
const (
	ReasonStaleVersion Reason = "STALE_VERSION"
	ReasonBusy         Reason = "BUSY"
	ReasonRowsLocked   Reason = "ROWS_LOCKED"

	ReasonMessageBusy      Reason = "MESSAGE_BUSY"  // somebody works on it: do not acknowledge
	ReasonMessageLater     Reason = "MESSAGE_LATER" // its wait is not over: do not acknowledge
	ReasonMessageLeaseLost Reason = "MESSAGE_LEASE_LOST"
)

// Failures of the system: nothing was kept, and this client retries them with the same key.
const (
	ReasonInternal            Reason = "INTERNAL"
	ReasonDatabaseUnavailable Reason = "DATABASE_UNAVAILABLE"
	ReasonOutcomeUnknown      Reason = "OUTCOME_UNKNOWN" // the deadline passed while the work was running
	ReasonNotRun              Reason = "NOT_RUN"         // the deadline passed before the work began
	ReasonShuttingDown        Reason = "SHUTTING_DOWN"
)
