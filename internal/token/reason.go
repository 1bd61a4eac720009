package token

import "github.com/ledgerd/ledgerd/internal/fault"

// Reasons why a token cannot be spent, in the order in which they are checked. All but Spent are invalid
// requests: they are not recorded under the request key, which may be retried with a valid token.
var (
	Missing = fault.Register(fault.Reason{Name: "TOKEN_MISSING", Class: fault.BadRequest, Code: fault.InvalidArgument,
		Step: fault.NewToken,
		Doc:  "The call requires a submit token, and none was sent: fetch one with IssueTokens."})
	Unknown = fault.Register(fault.Reason{Name: "TOKEN_UNKNOWN", Class: fault.BadRequest, Code: fault.NotFound,
		Step: fault.NewToken,
		Doc:  "There is no such submit token, or it was spent or expired so long ago that it was deleted."})
	Foreign = fault.Register(fault.Reason{Name: "TOKEN_FOREIGN", Class: fault.BadRequest, Code: fault.PermissionDenied,
		Step: fault.NewToken,
		Doc: "The submit token was issued for another subject or purpose than the call names: " +
			"the metadata lists which differs."})
	Spent = fault.Register(fault.Reason{Name: "TOKEN_SPENT", Class: fault.Duplicate, Code: fault.AlreadyExists,
		Step: fault.Ignore, Show: true,
		Doc: "The submit token was already spent: the metadata names the first submission and its result. " +
			"If it was refused (first_outcome), the next step is new_token."})
	Expired = fault.Register(fault.Reason{Name: "TOKEN_EXPIRED", Class: fault.BadRequest,
		Code: fault.FailedPrecondition,
		Step: fault.NewToken, Show: true,
		Doc: "The submit token expired before it was spent."})
)
