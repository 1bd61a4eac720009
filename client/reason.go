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
	ReasonFieldInvalid           Reason = "FIELD_INVALID"               // a field breaks a rule: see Error.Fields
	ReasonKeyInvalid             Reason = "IDEMPOTENCY_KEY_INVALID"     // not 1 to 255 printable ASCII characters
	ReasonKeyReused              Reason = "IDEMPOTENCY_KEY_REUSED"      // the key was used with other content
	ReasonKeyMissing             Reason = "IDEMPOTENCY_KEY_MISSING"     // the tenant requires one of this call
	ReasonKeyUnsupported         Reason = "IDEMPOTENCY_KEY_UNSUPPORTED" // the call takes no key
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
	ReasonMessageDiffers         Reason = "MESSAGE_DIFFERS"      // the message id came with another content
	// State names the first message, and in what it differs
	ReasonNotifyBizNoDifferent   Reason = "NOTIFY_BIZ_NO_EXISTS_DIFFERENT"
	ReasonNotifyNotFound         Reason = "NOTIFY_NOT_FOUND"
	ReasonNotifyContentTooLarge  Reason = "NOTIFY_CONTENT_TOO_LARGE"
	ReasonTemplateNotFound       Reason = "TEMPLATE_NOT_FOUND"
	ReasonVariablesInvalid       Reason = "TEMPLATE_VARIABLES_INVALID" // Fields names each
	ReasonCodeTemplateUnfit      Reason = "CODE_TEMPLATE_UNFIT"
	ReasonMessageNotFound        Reason = "MESSAGE_NOT_FOUND"
	ReasonWorkKeyReused          Reason = "WORK_KEY_REUSED" // begun with another fingerprint
	ReasonRecordNotFound         Reason = "RECORD_NOT_FOUND"
	ReasonAnswerDiffers          Reason = "ANSWER_DIFFERS" // the work has ended before, with another answer
	ReasonIDInvalid              Reason = "ID_INVALID"
	ReasonPageTokenInvalid       Reason = "PAGE_TOKEN_INVALID" // not made by this list with these parameters
	ReasonClaimNotFound          Reason = "CLAIM_NOT_FOUND"
	ReasonWebhookNotFound        Reason = "WEBHOOK_ENDPOINT_NOT_FOUND"
	ReasonWebhookExistsDifferent Reason = "WEBHOOK_ENDPOINT_EXISTS_DIFFERENT" // State has the fields that differ
	// claimed for ever and used with a life, or the reverse
	ReasonClaimLifeDifferent Reason = "CLAIM_LIFE_DIFFERENT"
)

// Duplicates: it happened before, and State names the first. Not recorded.
const (
	ReasonKeyClaimed Reason = "KEY_CLAIMED" // State has "owner", "result", "first_request_id", "count"
)

// Bad requests that a new submit token corrects.
const (
	ReasonTokenMissing Reason = "TOKEN_MISSING"
	ReasonTokenUnknown Reason = "TOKEN_UNKNOWN" // made up, or forgotten
	ReasonTokenForeign Reason = "TOKEN_FOREIGN" // issued for another subject or purpose
	ReasonTokenExpired Reason = "TOKEN_EXPIRED"
)

// Duplicates: not recorded. It happened before, and State names the first time.
const (
	// ReasonTokenSpent: the form was already submitted. State has first_outcome ("done" or "refused"),
	// first_operation, first_request_id, first_time and the names of what was made: first_resource with
	// first_id, first_biz_no, …, or first_result as SpendToken was told it.
	ReasonTokenSpent Reason = "TOKEN_SPENT"
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
	ReasonHoldNotHeld            Reason = "HOLD_NOT_HELD" // a capture or a release has ended it
	ReasonCaptureExceedsHold     Reason = "CAPTURE_EXCEEDS_HOLD"
	ReasonClaimForeign           Reason = "CLAIM_FOREIGN" // another owner's, who alone frees the key
	ReasonRecordNotParked        Reason = "RECORD_NOT_PARKED"
	ReasonMessageDead            Reason = "MESSAGE_DEAD" // a person looks at it: acknowledge
	ReasonMessageNotDead         Reason = "MESSAGE_NOT_DEAD"
	ReasonNotifyNotCancellable   Reason = "NOTIFY_NOT_CANCELLABLE" // it was sent, or may have been
	ReasonNotifyNotParked        Reason = "NOTIFY_NOT_PARKED"
	ReasonCodeWrong              Reason = "CODE_WRONG" // State has tries_left
	ReasonNotifyContentGone      Reason = "NOTIFY_CONTENT_GONE"
	ReasonLockLost               Reason = "LOCK_LOST" // lapsed or released: it does not come back
)

// Duplicates: not recorded. It happened before, and the error names the first result.
const (
	ReasonWorkSettled  Reason = "WORK_SETTLED"   // of a Begin in an Execute, or behind a submit token or a claim
	ReasonPageLockHeld Reason = "PAGE_LOCK_HELD" // LOCK_HELD, of a lock that guards a page id
)

// Conflicts: not recorded. BUSY, ROWS_LOCKED and WORK_RUNNING are retried by this client; the others want a decision
// before the next try.
const (
	ReasonStaleVersion       Reason = "STALE_VERSION"
	ReasonCursorHistoryEnded Reason = "CURSOR_HISTORY_ENDED" // the database was restored, or a standby took over
	ReasonFenceLost          Reason = "FENCE_LOST"           // somebody else may hold it now
	ReasonWorkRunning        Reason = "WORK_RUNNING"         // of a Begin in an Execute
	ReasonBusy               Reason = "BUSY"
	ReasonRowsLocked         Reason = "ROWS_LOCKED"
	ReasonLockHeld           Reason = "LOCK_HELD"       // State names the holder and the place in the queue
	ReasonLockQueueFull      Reason = "LOCK_QUEUE_FULL" // 1,000 wait for the lock

	ReasonWebhookSecretReplaced Reason = "WEBHOOK_SECRET_REPLACED" // State has its version now

	ReasonMessageBusy      Reason = "MESSAGE_BUSY"      // somebody works on it: do not acknowledge
	ReasonMessageLater     Reason = "MESSAGE_LATER"     // its wait is not over: do not acknowledge
	ReasonNotifyLimited    Reason = "NOTIFY_LIMITED"    // State names the limit; Error tells when there is room
	ReasonCodeTooSoon      Reason = "CODE_TOO_SOON"     // Error tells when there may be another one
	ReasonCodeTooMany      Reason = "CODE_TOO_MANY"     // of a day; Error tells when there is room
	ReasonCodeTriesSpent   Reason = "CODE_TRIES_SPENT"  // of a day; Error tells when there is one
	ReasonNotifyBeingSent  Reason = "NOTIFY_BEING_SENT" // it cannot be cancelled now
	ReasonMessageLeaseLost Reason = "MESSAGE_LEASE_LOST"
)

// Failures of the system: nothing was kept, and this client retries them with the same key.
const (
	ReasonSecretNotConfigured Reason = "SECRET_NOT_CONFIGURED" // the server has no master key
	ReasonInternal            Reason = "INTERNAL"
	ReasonDatabaseUnavailable Reason = "DATABASE_UNAVAILABLE"
	ReasonIDWorkerLost        Reason = "ID_WORKER_LOST"
	ReasonIDWorkersExhausted  Reason = "ID_WORKERS_EXHAUSTED"
	ReasonOutcomeUnknown      Reason = "OUTCOME_UNKNOWN" // the deadline passed while the work was running
	ReasonNotRun              Reason = "NOT_RUN"         // the deadline passed before the work began
	ReasonShuttingDown        Reason = "SHUTTING_DOWN"
)
