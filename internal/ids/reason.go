package ids

import "github.com/ledgerd/ledgerd/internal/fault"

// The reasons of ids.
var (
	Invalid = fault.Register(fault.Reason{Name: "ID_INVALID", Class: fault.BadRequest, Code: fault.InvalidArgument,
		Step: fault.Fix,
		Doc:  "The text is not an id of any form that Generate makes."})
	WorkerLost = fault.Register(fault.Reason{Name: "ID_WORKER_LOST", Class: fault.System, Code: fault.Unavailable,
		Step: fault.RetrySameKey,
		Doc: "The lease of the server's worker number cannot be renewed, and the ids that it covers are used up. " +
			"Nothing was kept; another server may have ids."})
	WorkersExhausted = fault.Register(fault.Reason{Name: "ID_WORKERS_EXHAUSTED", Class: fault.System,
		Code: fault.ResourceExhausted, Step: fault.RetrySameKey,
		Doc: "All 1,024 worker numbers are leased by other processes. RetryInfo says when the first may become free."})
)
