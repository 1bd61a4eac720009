package fault

// Reasons that belong to no domain.
var (
	FieldInvalid = Register(Reason{Name: "FIELD_INVALID", Class: BadRequest, Code: InvalidArgument, Step: Fix,
		Doc: "A field of the request breaks a rule; google.rpc.BadRequest names the fields."})
	InternalError = Register(Reason{Name: "INTERNAL", Class: System, Code: Internal, Step: RetrySameKey,
		Doc: "The server failed. Nothing was kept. The server's log has the cause under the request id."})
	DatabaseUnavailable = Register(Reason{Name: "DATABASE_UNAVAILABLE", Class: System, Code: Unavailable,
		Step: RetrySameKey,
		Doc: "The database cannot commit or be read now: unreachable, read-only, out of disk, " +
			"or it cancels statements. Nothing was kept."})
	OutcomeUnknown = Register(Reason{Name: "OUTCOME_UNKNOWN", Class: System, Code: DeadlineExceeded, Step: RetrySameKey,
		Doc: "The call timed out or was cancelled while its command ran, a synchronous standby did not confirm the " +
			"commit, or there was no memory for its large response: it may have been done. " +
			"Retry with the same key or biz_no."})
	NotRun = Register(Reason{Name: "NOT_RUN", Class: System, Code: DeadlineExceeded, Step: RetrySameKey,
		Doc: "The call timed out or was cancelled before its command began: nothing was done."})
	Busy = Register(Reason{Name: "BUSY", Class: Conflict, Code: ResourceExhausted, Step: RetrySameKey,
		Doc: "The tenant or the server has reached its limit of work in flight. Nothing of the call was kept, " +
			"not even one item of a batch; retry after the delay in RetryInfo (over HTTP also Retry-After)."})
	ShuttingDown = Register(Reason{Name: "SHUTTING_DOWN", Class: System, Code: Unavailable, Step: RetrySameKey,
		Doc: "The server is shutting down and accepts no more calls. Nothing was kept; " +
			"another server will accept the retry."})
	RowsLocked = Register(Reason{Name: "ROWS_LOCKED", Class: Conflict, Code: Aborted, Step: RetrySameKey,
		Doc: "Another transaction held the rows for longer than the call could wait. Nothing was kept."})
	FenceLost = Register(Reason{Name: "FENCE_LOST", Class: Conflict, Code: Aborted, Step: ReadAgain,
		Doc: "The fence is not the newest, or its lease was released or abandoned: another caller may hold what it " +
			"guards. Nothing was kept; stop the work under this fence."})
)
