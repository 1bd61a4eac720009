package rpc

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	notifyv1 "github.com/ledgerd/ledgerd/gen/ledgerd/notify/v1"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/notify"
	"github.com/ledgerd/ledgerd/internal/notify/send"
	"github.com/ledgerd/ledgerd/internal/notify/template"
)

// templated reads how a template writes a message; nil: it does not.
func templated(r *notifyv1.TemplateUse) *notify.Templated {
	if r == nil {
		return nil
	}
	return &notify.Templated{Name: template.Name{Name: r.GetName(), Locale: r.GetLocale(), Version: r.GetVersion()},
		Variables: r.GetVariables().AsMap()}
}

// PutTemplate keeps a template.
func (s *Notify) PutTemplate(ctx context.Context,
	r *notifyv1.PutTemplateRequest) (*notifyv1.PutTemplateResponse, error) {
	return run(ctx, s.Mutations, putTemplateCall, r)
}

var putTemplateCall = register("notify.put_template",
	func(c *call, d *decoder, r *notifyv1.PutTemplateRequest) mutation[*notifyv1.PutTemplateResponse] {
		g := mutation[*notifyv1.PutTemplateResponse]{rows: 2,
			render: func(answer any, existed bool) (*notifyv1.PutTemplateResponse, error) {
				a := answer.(template.Put)
				return &notifyv1.PutTemplateResponse{Version: a.Version, Locale: a.Locale, DefaultLocale: a.Default,
					Existed: existed}, nil
			}}
		cmd, err := template.NewPut(c.notifyCaller(), channels[r.GetChannel()], r.GetName(), r.GetLocale(),
			definitionOf(r.GetDefinition()))
		if err != nil {
			d.take("", err)
			return g
		}
		cmd.Default = r.GetMakeDefault()
		g.command = flow.Template(cmd)
		return g
	})

// DeleteTemplate deletes one.
func (s *Notify) DeleteTemplate(ctx context.Context,
	r *notifyv1.DeleteTemplateRequest) (*notifyv1.DeleteTemplateResponse, error) {
	return run(ctx, s.Mutations, deleteTemplateCall, r)
}

var deleteTemplateCall = register("notify.delete_template",
	func(c *call, d *decoder, r *notifyv1.DeleteTemplateRequest) mutation[*notifyv1.DeleteTemplateResponse] {
		cmd := &template.DeleteCommand{Caller: c.notifyCaller(), Channel: channels[r.GetChannel()], Name: r.GetName()}
		if r.GetLocale() != "" {
			var err error
			if cmd.Locale, err = template.Locale(r.GetLocale()); err != nil {
				d.bad("locale", "is not a BCP 47 tag, such as en or zh-Hant-TW")
			}
		}
		return mutation[*notifyv1.DeleteTemplateResponse]{command: flow.Template(cmd),
			render: func(answer any, _ bool) (*notifyv1.DeleteTemplateResponse, error) {
				return &notifyv1.DeleteTemplateResponse{DeleteTime: timestamppb.New(answer.(template.Deleted).At)}, nil
			}}
	})

// GetTemplate shows one.
func (s *Notify) GetTemplate(ctx context.Context,
	r *notifyv1.GetTemplateRequest) (*notifyv1.GetTemplateResponse, error) {
	versions, err := s.Templates.Get(ctx,
		template.Name{Tenant: callOf(ctx).identity.Tenant, Channel: channels[r.GetChannel()], Name: r.GetName(),
			Version: r.GetVersion()})
	if err != nil {
		return nil, err
	}
	res := &notifyv1.GetTemplateResponse{}
	for i := range versions {
		v := &versions[i]
		res.Versions = append(res.Versions,
			&notifyv1.TemplateVersion{Version: v.Number, Locale: v.Locale, DefaultLocale: v.Default,
				Definition: renderDefinition(&v.Definition), CreateTime: timestamp(v.CreatedAt), RequestId: v.RequestID,
				DeleteTime: timestamp(v.DeletedAt)})
	}
	return res, nil
}

// ListTemplates lists them.
func (s *Notify) ListTemplates(ctx context.Context,
	r *notifyv1.ListTemplatesRequest) (*notifyv1.ListTemplatesResponse, error) {
	list, next, err := s.Templates.List(ctx, callOf(ctx).identity.Tenant, channels[r.GetChannel()],
		int(r.GetPageSize()), r.GetPageToken())
	if err != nil {
		return nil, err
	}
	res := &notifyv1.ListTemplatesResponse{NextPageToken: next}
	for i := range list {
		l := &list[i]
		t := &notifyv1.Template{Channel: channelOf(l.Channel), Name: l.Name, DefaultLocale: l.DefaultLocale,
			Versions: map[string]int32{}, UpdateTime: timestamp(l.ChangedAt)}
		for j, locale := range l.Locales {
			t.Versions[locale] = l.Versions[j]
		}
		res.Templates = append(res.Templates, t)
	}
	return res, nil
}

// PreviewTemplate shows what one would say.
func (s *Notify) PreviewTemplate(ctx context.Context,
	r *notifyv1.PreviewTemplateRequest) (*notifyv1.PreviewTemplateResponse, error) {
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
	res := &notifyv1.PreviewTemplateResponse{Template: out.Template, Locale: out.Locale}
	for _, p := range problems {
		res.Problems = append(res.Problems, &notifyv1.TemplateProblem{Path: p.Path, Description: p.Text})
	}
	if len(problems) == 0 {
		res.Content = renderContent(&out.Content)
	}
	return res, nil
}

var variableKinds = map[notifyv1.VariableKind]template.Kind{
	notifyv1.VariableKind_VARIABLE_KIND_STRING:  template.String,
	notifyv1.VariableKind_VARIABLE_KIND_INTEGER: template.Integer,
	notifyv1.VariableKind_VARIABLE_KIND_AMOUNT:  template.Amount,
	notifyv1.VariableKind_VARIABLE_KIND_TIME:    template.Time,
	notifyv1.VariableKind_VARIABLE_KIND_URL:     template.URL, notifyv1.VariableKind_VARIABLE_KIND_BOOL: template.Bool,
	notifyv1.VariableKind_VARIABLE_KIND_RECORD: template.Record,
}

var variableKindNames = inverse(variableKinds)

func definitionOf(r *notifyv1.TemplateDefinition) *template.Definition {
	d := &template.Definition{Subject: r.GetSubject(), Text: r.GetText(), HTML: r.GetHtml(),
		Variables: variablesOf(r.GetVariables()),
		OnUnknown: onUnknowns[r.GetOnUnknown()], MaxAttempts: r.GetMaxAttempts(),
		LifeMs: r.GetGiveUpAfter().AsDuration().Milliseconds()}
	if r.GetPriority() != notifyv1.Priority_PRIORITY_UNSPECIFIED {
		p := priorities[r.GetPriority()]
		d.Priority = &p
	}
	for name, t := range r.GetProviderTemplates() {
		if d.Providers == nil {
			d.Providers = map[string]template.Provider{}
		}
		d.Providers[name] = template.Provider{ID: t.GetId(), Params: paramsOf(t.GetParams())}
	}
	return d
}

func variablesOf(list []*notifyv1.Variable) (vars []template.Variable) {
	for _, r := range list {
		vars = append(vars, template.Variable{Name: r.GetName(), Kind: variableKinds[r.GetKind()],
			Optional: r.GetOptional(), List: r.GetList(), MaxItems: r.GetMaxItems(),
			MaxLength: r.GetMaxLength(), Multiline: r.GetMultiline(), Asset: r.GetAsset(), Pattern: r.GetPattern(),
			Zone: r.GetZone(), Fields: variablesOf(r.GetFields())})
	}
	return vars
}

func paramsOf(list []*notifyv1.Param) (params []send.Param) {
	for _, p := range list {
		params = append(params, send.Param{Name: p.GetName(), Value: p.GetValue()})
	}
	return params
}

func renderParams(list []send.Param) (params []*notifyv1.Param) {
	for _, p := range list {
		params = append(params, &notifyv1.Param{Name: p.Name, Value: p.Value})
	}
	return params
}

func renderDefinition(d *template.Definition) *notifyv1.TemplateDefinition {
	r := &notifyv1.TemplateDefinition{Subject: d.Subject, Text: d.Text, Html: d.HTML,
		Variables: renderVariables(d.Variables), OnUnknown: unknownNames[d.OnUnknown],
		MaxAttempts: d.MaxAttempts}
	if d.Priority != nil {
		r.Priority = priorityOf(*d.Priority)
	}
	if d.LifeMs > 0 {
		r.GiveUpAfter = durationpb.New(time.Duration(d.LifeMs) * time.Millisecond)
	}
	for name, t := range d.Providers {
		if r.ProviderTemplates == nil {
			r.ProviderTemplates = map[string]*notifyv1.ProviderTemplate{}
		}
		r.ProviderTemplates[name] = &notifyv1.ProviderTemplate{Id: t.ID, Params: renderParams(t.Params)}
	}
	return r
}

func renderVariables(vars []template.Variable) (list []*notifyv1.Variable) {
	for i := range vars {
		v := &vars[i]
		list = append(list, &notifyv1.Variable{Name: v.Name, Kind: variableKindNames[v.Kind], Optional: v.Optional,
			List: v.List, MaxItems: v.MaxItems,
			MaxLength: v.MaxLength, Multiline: v.Multiline, Asset: v.Asset, Pattern: v.Pattern, Zone: v.Zone,
			Fields: renderVariables(v.Fields)})
	}
	return list
}
