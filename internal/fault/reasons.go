package fault

// Reasons that belong to no domain.
var (
	FieldInvalid = Define(Reason{Name: "FIELD_INVALID", Class: BadRequest, Code: InvalidArgument, Step: Fix,
		Doc: "A field of the request breaks a rule; the details name the fields."})
	InternalError = Define(Reason{Name: "INTERNAL", Class: System, Code: Internal, Step: RetrySameKey,
		Doc: "The server failed. Nothing was kept. The log has more under the request id."})
	DatabaseUnavailable = Define(Reason{Name: "DATABASE_UNAVAILABLE", Class: System, Code: Unavailable, Step: RetrySameKey,
		Doc: "Postgres cannot be reached, or cannot write. Nothing was kept."})
	OutcomeUnknown = Define(Reason{Name: "OUTCOME_UNKNOWN", Class: System, Code: DeadlineExceeded, Step: RetrySameKey,
		Doc: "The deadline passed after the work had begun: it may have been done. Retry with the same key, or the same biz_no, to learn it."})
	NotRun = Define(Reason{Name: "NOT_RUN", Class: System, Code: DeadlineExceeded, Step: RetrySameKey,
		Doc: "The deadline passed before the work began: nothing was done."})
	Busy = Define(Reason{Name: "BUSY", Class: Conflict, Code: ResourceExhausted, Step: RetrySameKey,
		Doc: "The tenant, or the server, has as much in flight as it may. Nothing of the call was kept, of a batch no item, and a large request was not even decoded; wait as RetryInfo (over HTTP also Retry-After) says."})
	ShuttingDown = Define(Reason{Name: "SHUTTING_DOWN", Class: System, Code: Unavailable, Step: RetrySameKey,
		Doc: "The server is ending and takes no more work. Nothing was kept; another one will."})
	RowsLocked = Define(Reason{Name: "ROWS_LOCKED", Class: Conflict, Code: Aborted, Step: RetrySameKey,
		Doc: "Somebody held the rows for longer than the call could wait. Nothing was kept."})
	FenceLost = Define(Reason{Name: "FENCE_LOST", Class: Conflict, Code: Aborted, Step: ReadAgain,
		Doc: "The fence is not the newest, or its lease was given back: somebody else may hold what it was for. Nothing was kept; stop what was done under it."})
)
