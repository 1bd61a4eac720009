package template

import "github.com/ledgerd/ledgerd/internal/fault"

// Reasons of templates. All are bad requests: the same key may run again, corrected.
var (
	NotFound = fault.Register(fault.Reason{Name: "TEMPLATE_NOT_FOUND", Class: fault.BadRequest, Code: fault.NotFound,
		Step: fault.Fix,
		Doc:  "The channel has no template of this name, the template has no such version, or it was deleted."})
	VariablesInvalid = fault.Register(fault.Reason{Name: "TEMPLATE_VARIABLES_INVALID", Class: fault.BadRequest,
		Code: fault.InvalidArgument, Step: fault.Fix,
		Doc: "The template cannot be rendered with these variables: the fields list the variables that are missing, " +
			"unknown, or of another kind, and the parts of the message that would be invalid."})
)

// invalid returns a fault with the problems as invalid fields.
func invalid(r *fault.Reason, problems []Problem) *fault.Fault {
	fields := make([]fault.Field, len(problems))
	for i, p := range problems {
		fields[i] = fault.Field{Path: p.Path, Description: p.Text}
	}
	return r.About(fields)
}
