package rpc

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/ledgerd/ledgerd/gen/ledgerd/notify/v1"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/notify"
	"github.com/ledgerd/ledgerd/internal/notify/template"
)

// templated decodes the use of a template. Nil: the message has none.
func templated(r *pb.TemplateUse) *notify.Templated {
	if r == nil {
		return nil
	}
	return &notify.Templated{Name: template.Name{Name: r.GetName(), Locale: r.GetLocale(), Version: r.GetVersion()},
		Variables: r.GetVariables().AsMap()}
}

func (s *Notify) PutTemplate(ctx context.Context, r *pb.PutTemplateRequest) (*pb.PutTemplateResponse, error) {
	return run(ctx, s.Mutations, putTemplateOperation, r)
}

var putTemplateOperation = register("notify.put_template",
	func(c *call, d *decoder, r *pb.PutTemplateRequest) mutation[*pb.PutTemplateResponse] {
		cmd, err := template.NewPut(c.caller(), channels[r.GetChannel()], r.GetName(), r.GetLocale(),
			definitionOf(r.GetDefinition()))
		if err != nil {
			d.addProblems("", err)
		} else {
			cmd.Default = r.GetMakeDefault()
		}
		return newMutation(flow.Template(cmd), 2, func(a template.Put, existed bool) *pb.PutTemplateResponse {
			return &pb.PutTemplateResponse{Version: a.Version, Locale: a.Locale, IsDefaultLocale: a.Default,
				Existed: existed}
		})
	})

func (s *Notify) DeleteTemplate(ctx context.Context, r *pb.DeleteTemplateRequest) (*pb.DeleteTemplateResponse, error) {
	return run(ctx, s.Mutations, deleteTemplateOperation, r)
}

var deleteTemplateOperation = register("notify.delete_template",
	func(c *call, d *decoder, r *pb.DeleteTemplateRequest) mutation[*pb.DeleteTemplateResponse] {
		cmd := &template.DeleteCommand{Caller: c.caller(), Channel: channels[r.GetChannel()], Name: r.GetName()}
		if r.GetLocale() != "" {
			var err error
			if cmd.Locale, err = template.Locale(r.GetLocale()); err != nil {
				d.bad("locale", "is not a BCP 47 tag, such as en or zh-Hant-TW")
			}
		}
		return newMutation(flow.Template(cmd), 1, func(deleted template.Deleted, _ bool) *pb.DeleteTemplateResponse {
			return &pb.DeleteTemplateResponse{DeleteTime: timestamp(deleted.At)}
		})
	})

func (s *Notify) GetTemplate(ctx context.Context, r *pb.GetTemplateRequest) (*pb.GetTemplateResponse, error) {
	versions, err := s.Templates.Get(ctx,
		template.Name{Tenant: callOf(ctx).identity.Tenant, Channel: channels[r.GetChannel()], Name: r.GetName(),
			Version: r.GetVersion()})
	return &pb.GetTemplateResponse{Versions: eachOf(versions, func(v *template.Version) *pb.TemplateVersion {
		return &pb.TemplateVersion{Version: v.Number, Locale: v.Locale, IsDefaultLocale: v.Default,
			Definition: renderDefinition(&v.Definition), CreateTime: timestamp(v.CreatedAt), RequestId: v.RequestID,
			DeleteTime: timestamp(v.DeletedAt)}
	})}, err
}

func (s *Notify) ListTemplates(ctx context.Context, r *pb.ListTemplatesRequest) (*pb.ListTemplatesResponse, error) {
	list, next, err := s.Templates.List(ctx, callOf(ctx).identity.Tenant, channels[r.GetChannel()],
		int(r.GetPageSize()), r.GetPageToken())
	res := &pb.ListTemplatesResponse{NextPageToken: next}
	for _, l := range list {
		t := &pb.Template{Channel: channelNames[l.Channel], Name: l.Name, DefaultLocale: l.DefaultLocale,
			Versions: map[string]int32{}, UpdateTime: timestamp(l.ChangedAt)}
		for j, locale := range l.Locales {
			t.Versions[locale] = l.Versions[j]
		}
		res.Templates = append(res.Templates, t)
	}
	return res, err
}

func (s *Notify) PreviewTemplate(ctx context.Context,
	r *pb.PreviewTemplateRequest) (*pb.PreviewTemplateResponse, error) {
	use := r.GetTemplate()
	n := template.Name{Tenant: callOf(ctx).identity.Tenant, Channel: channels[r.GetChannel()], Name: use.GetName(),
		Locale: use.GetLocale(), Version: use.GetVersion()}
	var given *template.Definition
	if r.GetDefinition() != nil {
		given = definitionOf(r.GetDefinition())
	}
	out, problems, err := s.Templates.Preview(ctx, n, given, use.GetVariables().AsMap())
	if err != nil {
		return nil, err
	}
	res := &pb.PreviewTemplateResponse{Template: out.Template, Locale: out.Locale}
	for _, p := range problems {
		res.Problems = append(res.Problems, &pb.TemplateProblem{Path: p.Path, Description: p.Text})
	}
	if len(problems) == 0 {
		res.Content = renderContent(&out.Content)
	}
	return res, nil
}

var variableKinds = map[pb.VariableKind]template.Kind{
	pb.VariableKind_VARIABLE_KIND_STRING:  template.String,
	pb.VariableKind_VARIABLE_KIND_INTEGER: template.Integer,
	pb.VariableKind_VARIABLE_KIND_AMOUNT:  template.Amount,
	pb.VariableKind_VARIABLE_KIND_TIME:    template.Time,
	pb.VariableKind_VARIABLE_KIND_URL:     template.URL, pb.VariableKind_VARIABLE_KIND_BOOL: template.Bool,
	pb.VariableKind_VARIABLE_KIND_RECORD: template.Record,
}

var variableKindNames = inverse(variableKinds)

func definitionOf(r *pb.TemplateDefinition) *template.Definition {
	d := &template.Definition{Subject: r.GetSubject(), Text: r.GetText(), HTML: r.GetHtml(),
		Variables: variablesOf(r.GetVariables()), OnUnknown: onUnknowns[r.GetOnUnknown()],
		MaxAttempts: r.GetMaxAttempts(), LifeMs: r.GetGiveUpAfter().AsDuration().Milliseconds()}
	if r.GetPriority() != pb.Priority_PRIORITY_UNSPECIFIED {
		p := priorities[r.GetPriority()]
		d.Priority = &p
	}
	for name, t := range r.GetProviderTemplates() {
		if d.Providers == nil {
			d.Providers = map[string]template.Provider{}
		}
		d.Providers[name] = template.Provider{ID: t.GetId(), Params: each(t.GetParams(), paramOf)}
	}
	return d
}

func variablesOf(list []*pb.Variable) (vars []template.Variable) {
	for _, r := range list {
		vars = append(vars, template.Variable{Name: r.GetName(), Kind: variableKinds[r.GetKind()],
			Optional: r.GetOptional(), List: r.GetList(), MaxItems: r.GetMaxItems(), MaxLength: r.GetMaxLength(),
			Multiline: r.GetMultiline(), Asset: r.GetAsset(), Pattern: r.GetPattern(), Zone: r.GetZone(),
			Fields: variablesOf(r.GetFields())})
	}
	return vars
}

func renderDefinition(d *template.Definition) *pb.TemplateDefinition {
	r := &pb.TemplateDefinition{Subject: d.Subject, Text: d.Text, Html: d.HTML, Variables: renderVariables(d.Variables),
		OnUnknown: unknownNames[d.OnUnknown], MaxAttempts: d.MaxAttempts}
	if d.Priority != nil {
		r.Priority = priorityNames[*d.Priority]
	}
	if d.LifeMs > 0 {
		r.GiveUpAfter = durationpb.New(time.Duration(d.LifeMs) * time.Millisecond)
	}
	for name, t := range d.Providers {
		if r.ProviderTemplates == nil {
			r.ProviderTemplates = map[string]*pb.ProviderTemplate{}
		}
		r.ProviderTemplates[name] = &pb.ProviderTemplate{Id: t.ID, Params: each(t.Params, renderParam)}
	}
	return r
}

func renderVariables(vars []template.Variable) (list []*pb.Variable) {
	for i := range vars {
		v := &vars[i]
		list = append(list, &pb.Variable{Name: v.Name, Kind: variableKindNames[v.Kind], Optional: v.Optional,
			List: v.List, MaxItems: v.MaxItems, MaxLength: v.MaxLength, Multiline: v.Multiline, Asset: v.Asset,
			Pattern: v.Pattern, Zone: v.Zone, Fields: renderVariables(v.Fields)})
	}
	return list
}
