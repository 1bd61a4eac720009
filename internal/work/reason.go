package work

import "github.com/ledgerd/ledgerd/internal/fault"

// Reasons of work; an outdated fence is fault.FenceLost.
var (
	WorkKeyReused = fault.Register(fault.Reason{Name: "WORK_KEY_REUSED", Class: fault.BadRequest,
		Code: fault.AlreadyExists, Step: fault.Fix,
		Doc: "The key was already used to begin work with another fingerprint. Nothing was done; " +
			"the metadata names the first request."})
	NotFound = fault.Register(fault.Reason{Name: "WORK_NOT_FOUND", Class: fault.BadRequest, Code: fault.NotFound,
		Step: fault.Fix, Doc: "There is no record of the work, or the record has expired."})
	NotParked = fault.Register(fault.Reason{Name: "WORK_NOT_PARKED", Class: fault.Refusal,
		Code: fault.FailedPrecondition, Step: fault.NewKey,
		Doc: "The work is not parked, and no holder let its lease expire, so there is nothing to resolve: " +
			"the metadata has the work's state."})
	AnswerDiffers = fault.Register(fault.Reason{Name: "ANSWER_DIFFERS", Class: fault.BadRequest,
		Code: fault.AlreadyExists, Step: fault.Fix,
		Doc: "The work has already ended, under the same fence, with another answer. The first answer stays."})
	WorkRunning = fault.Register(fault.Reason{Name: "WORK_RUNNING", Class: fault.Conflict, Code: fault.Aborted,
		Step: fault.RetrySameKey,
		Doc: "Returned only for a Begin in an Execute, or with a submit token or a claim: another caller holds the " +
			"work, so nothing was done, and the token is not spent."})
	WorkSettled = fault.Register(fault.Reason{Name: "WORK_SETTLED", Class: fault.Duplicate, Code: fault.AlreadyExists,
		Step: fault.Ignore,
		Doc: "Returned only for a Begin in an Execute: the work has already ended, or is parked, " +
			"so nothing of the Execute was done. The metadata says which, and names the first request."})
)

func notFound(scope, key string) error {
	return NotFound.New("there is no record of work %s %q", scope, key).With("scope", scope).With("key", key).
		WithField("key", "must be a key of work that has a record")
}
