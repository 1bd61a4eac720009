package client

// Reason is the machine-readable reason of a failed call. It is an error, so that errors.Is can match it:
//
//	if errors.Is(err, client.ReasonInsufficientFunds) { … }
//
// A newer server may send reasons that are not listed here; compare them with Reason("NAME").
type Reason string

// Error returns the name.
func (r Reason) Error() string { return string(r) }

// Bad requests: not recorded; the same key may run with a corrected request.
const (
	ReasonFieldInvalid           Reason = "FIELD_INVALID"               // a field violates a rule: see Error.Fields
	ReasonUnsupported            Reason = "UNSUPPORTED"                 // the server has no such call: it may be older
	ReasonKeyInvalid             Reason = "IDEMPOTENCY_KEY_INVALID"     // not 1 to 255 printable ASCII characters
	ReasonKeyReused              Reason = "IDEMPOTENCY_KEY_REUSED"      // the key was used with other content
	ReasonKeyMissing             Reason = "IDEMPOTENCY_KEY_MISSING"     // the tenant's policy requires a key
	ReasonKeyUnsupported         Reason = "IDEMPOTENCY_KEY_UNSUPPORTED" // the call takes no key
	ReasonCommandTooLarge        Reason = "COMMAND_TOO_LARGE"
	ReasonUnauthenticated        Reason = "UNAUTHENTICATED"   // no valid API key, token or certificate
	ReasonPermissionDenied       Reason = "PERMISSION_DENIED" // the caller's role or scopes do not allow the call
	ReasonAdministrationOff      Reason = "ADMINISTRATION_OFF"
	ReasonTenantNotFound         Reason = "TENANT_NOT_FOUND"
	ReasonAPIKeyNotFound         Reason = "API_KEY_NOT_FOUND" // or it is revoked or expired
	ReasonPolicyNotFound         Reason = "POLICY_NOT_FOUND"
	ReasonLimitNotFound          Reason = "LIMIT_NOT_FOUND"
	ReasonApprovalRequired       Reason = "APPROVAL_REQUIRED" // request it with Approvals.RequestApproval
	ReasonApprovalNotFound       Reason = "APPROVAL_NOT_FOUND"
	ReasonApprovalByRequester    Reason = "APPROVAL_BY_REQUESTER"
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
	ReasonMessageDiffers         Reason = "MESSAGE_DIFFERS"      // the message id was received with other content
	// Metadata names the first message and the fields that differ.
	ReasonNotifyBizNoDifferent   Reason = "NOTIFY_BIZ_NO_EXISTS_DIFFERENT"
	ReasonNotifyNotFound         Reason = "NOTIFY_NOT_FOUND"
	ReasonNotifyContentTooLarge  Reason = "NOTIFY_CONTENT_TOO_LARGE"
	ReasonTemplateNotFound       Reason = "TEMPLATE_NOT_FOUND"
	ReasonVariablesInvalid       Reason = "TEMPLATE_VARIABLES_INVALID" // Fields names each variable
	ReasonCodeTemplateUnfit      Reason = "CODE_TEMPLATE_UNFIT"
	ReasonMessageNotFound        Reason = "MESSAGE_NOT_FOUND"
	ReasonWorkKeyReused          Reason = "WORK_KEY_REUSED" // begun with another fingerprint
	ReasonWorkNotFound           Reason = "WORK_NOT_FOUND"
	ReasonAnswerDiffers          Reason = "ANSWER_DIFFERS" // the work has already ended with another answer
	ReasonIDInvalid              Reason = "ID_INVALID"
	ReasonPageTokenInvalid       Reason = "PAGE_TOKEN_INVALID" // issued by another list or for other parameters
	ReasonClaimNotFound          Reason = "CLAIM_NOT_FOUND"
	ReasonWebhookNotFound        Reason = "WEBHOOK_ENDPOINT_NOT_FOUND"
	ReasonWebhookExistsDifferent Reason = "WEBHOOK_ENDPOINT_EXISTS_DIFFERENT" // Metadata has the fields that differ
	// The key is claimed forever and the use has a life, or the reverse.
	ReasonClaimLifeDifferent Reason = "CLAIM_LIFE_DIFFERENT"

	ReasonMachineInvalid          Reason = "MACHINE_INVALID" // Fields names every problem of the definition
	ReasonMachineNotFound         Reason = "MACHINE_NOT_FOUND"
	ReasonInstanceNotFound        Reason = "INSTANCE_NOT_FOUND"
	ReasonInstanceExistsDifferent Reason = "INSTANCE_EXISTS_DIFFERENT"
	ReasonMoveInputMissing        Reason = "MOVE_INPUT_MISSING" // Fields names the inputs

	ReasonItemNotFound               Reason = "ITEM_NOT_FOUND"
	ReasonReservationNotFound        Reason = "RESERVATION_NOT_FOUND"
	ReasonReservationExistsDifferent Reason = "RESERVATION_EXISTS_DIFFERENT"
	ReasonChangeExistsDifferent      Reason = "CHANGE_EXISTS_DIFFERENT"
	ReasonStockTooLarge              Reason = "STOCK_TOO_LARGE"
	ReasonSegmentsTooFew             Reason = "SEGMENTS_TOO_FEW"      // segments can grow, but not shrink
	ReasonStrategyStandsAlone        Reason = "STRATEGY_STANDS_ALONE" // the strategy cannot share a transaction

	ReasonOrderNotFound         Reason = "ORDER_NOT_FOUND"
	ReasonOrderExistsDifferent  Reason = "ORDER_EXISTS_DIFFERENT" // Metadata has the fields that differ
	ReasonOrderPartExists       Reason = "ORDER_PART_EXISTS"      // Metadata has the number of the part
	ReasonSaleNotFound          Reason = "SALE_NOT_FOUND"
	ReasonCouponNotFound        Reason = "COUPON_NOT_FOUND"
	ReasonCouponExistsDifferent Reason = "COUPON_EXISTS_DIFFERENT"

	ReasonPaymentNotFound        Reason = "PAYMENT_NOT_FOUND"
	ReasonPaymentExistsDifferent Reason = "PAYMENT_EXISTS_DIFFERENT" // Metadata has the open payment
	ReasonOutTradeNoTaken        Reason = "OUT_TRADE_NO_TAKEN"
	ReasonGatewayNotFound        Reason = "GATEWAY_NOT_FOUND"
	ReasonGatewayNotConfigured   Reason = "GATEWAY_NOT_CONFIGURED" // the server has no settings for it
	ReasonCallbackForged         Reason = "CALLBACK_FORGED"        // nothing was recorded
	ReasonCallbackUnreadable     Reason = "CALLBACK_UNREADABLE"
	ReasonRefundNotFound         Reason = "REFUND_NOT_FOUND"
	ReasonRefundExistsDifferent  Reason = "REFUND_EXISTS_DIFFERENT" // Metadata has the fields that differ
	ReasonFlagNotFound           Reason = "FLAG_NOT_FOUND"
)

// Duplicates: done before; Metadata describes the first. Not recorded.
const (
	ReasonKeyClaimed Reason = "KEY_CLAIMED" // Metadata has "owner", "result", "first_request_id", "count"
)

// Bad requests that a new submit token fixes.
const (
	ReasonTokenMissing Reason = "TOKEN_MISSING"
	ReasonTokenUnknown Reason = "TOKEN_UNKNOWN" // forged, or already deleted
	ReasonTokenForeign Reason = "TOKEN_FOREIGN" // issued for another subject or purpose
	ReasonTokenExpired Reason = "TOKEN_EXPIRED"
)

// Duplicates: not recorded. Done before; Metadata describes the first.
const (
	// ReasonTokenSpent: the submit token was already spent. Metadata has first_outcome ("done" or "refused"),
	// first_operation, first_request_id, first_time and the names of the created objects: first_resource with
	// first_id, first_biz_no, …, or first_result as given to SpendToken.
	ReasonTokenSpent Reason = "TOKEN_SPENT"
)

// Duplicates: not recorded. The effect happened before; no message to the user is needed.
const ReasonMessageDuplicate Reason = "MESSAGE_DUPLICATE" // already processed: acknowledge it

// Duplicates: not recorded. Metadata has the order of the same purchase.
const ReasonPurchaseRepeated Reason = "PURCHASE_REPEATED"

// Duplicates: not recorded. Metadata has how, by whom and when the flag was resolved.
const ReasonFlagResolved Reason = "FLAG_RESOLVED"

// Business refusals: recorded under the key. The same key gets the same refusal during the key's life, so a new
// decision needs a new key.
const (
	ReasonInsufficientFunds      Reason = "INSUFFICIENT_FUNDS"       // Metadata has "available"
	ReasonBalanceConditionFailed Reason = "BALANCE_CONDITION_FAILED" // less than Condition.balance_at_least
	ReasonBalanceLimitExceeded   Reason = "BALANCE_LIMIT_EXCEEDED"   // above the account's greatest balance
	ReasonAccountClosed          Reason = "ACCOUNT_CLOSED"
	ReasonAccountFrozen          Reason = "ACCOUNT_FROZEN"
	ReasonApprovalRejected       Reason = "APPROVAL_REJECTED" // Metadata has decided_by
	ReasonApprovalApproved       Reason = "APPROVAL_APPROVED" // Metadata has decided_by
	ReasonApprovalExpired        Reason = "APPROVAL_EXPIRED"
	ReasonAccountNotEmpty        Reason = "ACCOUNT_NOT_EMPTY"
	ReasonAccountLimitViolated   Reason = "ACCOUNT_LIMIT_VIOLATED"
	ReasonAlreadyReversed        Reason = "ALREADY_REVERSED"
	ReasonHoldExpired            Reason = "HOLD_EXPIRED"
	ReasonHoldNotHeld            Reason = "HOLD_NOT_HELD" // already captured or released
	ReasonCaptureExceedsHold     Reason = "CAPTURE_EXCEEDS_HOLD"
	ReasonClaimForeign           Reason = "CLAIM_FOREIGN" // another owner's claim; only that owner can free the key
	ReasonWorkNotParked          Reason = "WORK_NOT_PARKED"
	ReasonMessageDead            Reason = "MESSAGE_DEAD" // waits for an operator: acknowledge it
	ReasonMessageNotDead         Reason = "MESSAGE_NOT_DEAD"
	ReasonNotifyNotCancellable   Reason = "NOTIFY_NOT_CANCELLABLE" // sent, or possibly sent
	ReasonNotifyNotParked        Reason = "NOTIFY_NOT_PARKED"
	ReasonCodeWrong              Reason = "CODE_WRONG" // Metadata has tries_left
	ReasonNotifyContentGone      Reason = "NOTIFY_CONTENT_GONE"
	ReasonLockLost               Reason = "LOCK_LOST" // expired or released: it cannot be renewed

	ReasonStateTaken     Reason = "STATE_TAKEN"      // Metadata has the cause of the move into the state
	ReasonMoveNotAllowed Reason = "MOVE_NOT_ALLOWED" // Metadata has both states, and the allowed moves
	ReasonMoveNotYours   Reason = "MOVE_NOT_YOURS"

	ReasonOutOfStock         Reason = "OUT_OF_STOCK"         // Metadata has "available"
	ReasonStockBelowPromised Reason = "STOCK_BELOW_PROMISED" // Metadata has "available"
	ReasonReservationEnded   Reason = "RESERVATION_ENDED"    // Metadata has "state": sold, cancelled or expired
	ReasonReservationNotSold Reason = "RESERVATION_NOT_SOLD"
	ReasonUnsellExceedsSold  Reason = "UNSELL_EXCEEDS_SOLD" // Metadata has "remaining"

	ReasonOrderNotPayable   Reason = "ORDER_NOT_PAYABLE"   // Metadata has "state"
	ReasonPaymentNotPaid    Reason = "PAYMENT_NOT_PAID"    // Metadata has "state"
	ReasonRefundExceedsPaid Reason = "REFUND_EXCEEDS_PAID" // Metadata has "remaining"

	ReasonCouponTaken     Reason = "COUPON_TAKEN" // it has another owner
	ReasonCouponOwned     Reason = "COUPON_OWNED" // Metadata has the "code" of the owner's other one
	ReasonCouponUnclaimed Reason = "COUPON_UNCLAIMED"
	ReasonCouponExpired   Reason = "COUPON_EXPIRED"
)

// Duplicates: not recorded. Done before; the error names the first result.
const (
	ReasonWorkSettled  Reason = "WORK_SETTLED"   // of a Begin in an Execute, or with a submit token or a claim
	ReasonPageLockHeld Reason = "PAGE_LOCK_HELD" // like LOCK_HELD, for a lock that guards a page id
)

// Conflicts: not recorded. This client retries BUSY, ROWS_LOCKED and WORK_RUNNING; the others need a decision
// before a retry.
const (
	ReasonStaleVersion     Reason = "STALE_VERSION"
	ReasonCursorEpochEnded Reason = "CURSOR_EPOCH_ENDED" // the database was restored, or a standby was promoted
	ReasonFenceLost        Reason = "FENCE_LOST"         // another caller may have the lease now
	ReasonWorkRunning      Reason = "WORK_RUNNING"       // of a Begin in an Execute
	ReasonBusy             Reason = "BUSY"
	ReasonRowsLocked       Reason = "ROWS_LOCKED"
	ReasonLockHeld         Reason = "LOCK_HELD"       // Metadata has the holder and the position in the queue
	ReasonLockQueueFull    Reason = "LOCK_QUEUE_FULL" // 1,000 callers wait for the lock

	ReasonWebhookEndpointsFull  Reason = "WEBHOOK_ENDPOINTS_FULL"
	ReasonWebhookSecretReplaced Reason = "WEBHOOK_SECRET_REPLACED" // Metadata has the current version

	ReasonMessageBusy      Reason = "MESSAGE_BUSY"      // another consumer processes it: do not acknowledge
	ReasonMessageLater     Reason = "MESSAGE_LATER"     // in backoff: do not acknowledge
	ReasonNotifyLimited    Reason = "NOTIFY_LIMITED"    // Metadata has the limit; RetryAfter says when there is room
	ReasonCodeTooSoon      Reason = "CODE_TOO_SOON"     // RetryAfter says when the next code may be sent
	ReasonCodeTooMany      Reason = "CODE_TOO_MANY"     // per day; RetryAfter says when there is room
	ReasonCodeTriesSpent   Reason = "CODE_TRIES_SPENT"  // per day; RetryAfter says when the next try is allowed
	ReasonNotifyBeingSent  Reason = "NOTIFY_BEING_SENT" // it cannot be cancelled now
	ReasonMessageLeaseLost Reason = "MESSAGE_LEASE_LOST"

	ReasonStateChanged Reason = "STATE_CHANGED"  // Metadata has the state and the revision now
	ReasonMoveTooEarly Reason = "MOVE_TOO_EARLY" // Metadata has "not_before"
)

// System failures: nothing was recorded, and this client retries them with the same key.
const (
	ReasonSecretNotConfigured Reason = "SECRET_NOT_CONFIGURED" // the server has no master key
	ReasonInternal            Reason = "INTERNAL"
	ReasonDatabaseUnavailable Reason = "DATABASE_UNAVAILABLE"
	ReasonIssuerUnavailable   Reason = "ISSUER_UNAVAILABLE"  // the token cannot be checked now
	ReasonGatewayUnavailable  Reason = "GATEWAY_UNAVAILABLE" // Metadata has the gateway's code
	ReasonIDWorkerLost        Reason = "ID_WORKER_LOST"
	ReasonIDWorkersExhausted  Reason = "ID_WORKERS_EXHAUSTED"
	ReasonOutcomeUnknown      Reason = "OUTCOME_UNKNOWN" // the deadline passed while the work was running
	ReasonNotRun              Reason = "NOT_RUN"         // the deadline passed before the work began
	ReasonShuttingDown        Reason = "SHUTTING_DOWN"
)
