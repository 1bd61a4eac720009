package webhook

import "github.com/ledgerd/ledgerd/internal/fault"

// Reasons of webhook endpoints.
var (
	NotFound = fault.Register(fault.Reason{Name: "WEBHOOK_ENDPOINT_NOT_FOUND", Class: fault.BadRequest,
		Code: fault.NotFound, Step: fault.Fix,
		Doc: "There is no webhook endpoint with this name."})
	ExistsDifferent = fault.Register(fault.Reason{Name: "WEBHOOK_ENDPOINT_EXISTS_DIFFERENT", Class: fault.BadRequest,
		Code: fault.AlreadyExists, Step: fault.Fix,
		Doc: "A webhook endpoint with this name exists with another URL, other types or another description. " +
			"The metadata lists the fields that differ."})
	Full = fault.Register(fault.Reason{Name: "WEBHOOK_ENDPOINTS_FULL", Class: fault.Refusal,
		Code: fault.FailedPrecondition, Step: fault.NewKey,
		Doc: "The tenant has 100 webhook endpoints, disabled ones included. Nothing was created; " +
			"delete an endpoint first."})
	Replaced = fault.Register(fault.Reason{Name: "WEBHOOK_SECRET_REPLACED", Class: fault.Conflict, Code: fault.Aborted,
		Step: fault.ReadAgain,
		Doc: "The secret of the webhook endpoint has a newer version than the call names. Nothing was changed; " +
			"the metadata has the current version."})
)
