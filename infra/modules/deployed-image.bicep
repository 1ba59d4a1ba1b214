// Reads the image that an app runs at present. `azd deploy` sets it without this template, so each deployment of the template reads
// the image and deploys the same one. This is a module of its own, because a template cannot read a resource that it also deploys.
param name string

@description('False before the first deployment of the app, when there is no app whose image can be read.')
param exists bool

resource app 'Microsoft.App/containerApps@2025-01-01' existing = if (exists) {
  name: name
}

// The placeholder image that the app runs until the first `azd deploy`.
var placeholder = 'mcr.microsoft.com/azuredocs/containerapps-helloworld:latest'

output image string = exists ? app!.properties.template.containers[0].image : placeholder
output deployed bool = exists ? app!.properties.template.containers[0].image != placeholder : false
