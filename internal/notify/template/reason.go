package template

import "github.com/ledgerd/ledgerd/internal/fault"

// Reasons of templates. All are bad requests: the same key may run again, corrected.
var (
	NotFound = fault.Define(fault.Reason{Name: "TEMPLATE_NOT_FOUND", Class: fault.BadRequest, Code: fault.NotFound,
		Step: fault.Fix,
		Doc:  "The channel has no template of this name, the template has no such version, or it was deleted."})
	VariablesInvalid = fault.Define(fault.Reason{Name: "TEMPLATE_VARIABLES_INVALID", Class: fault.BadRequest,
		Code: fault.InvalidArgument, Step: fault.Fix,
		Doc: "The template cannot be rendered with these variables: the fields list the variables that are missing, unknown, or of another kind, and the parts of the message that would be invalid."})
)

// maxProblems bounds the fields in an error: it has to fit into a trailer.
const maxProblems = 20

// invalid returns a fault with one field violation per problem, up to maxProblems.
func invalid(r *fault.Reason, problems []Problem) *fault.Fault {
	f := r.New("%s: %s", problems[0].Path, problems[0].Text)
	for _, p := range problems[:min(len(problems), maxProblems)] {
		f.WithField(p.Path, p.Text)
	}
	return f
}
