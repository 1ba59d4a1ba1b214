// The image that an app runs: `azd deploy` sets it behind the template's back, so each deployment of the template has to
// ask for it and hand it back. A module of its own, for a template cannot read what it is about to write.
param name string

@description('False before the app was ever made: what is not there cannot be asked.')
param exists bool

resource app 'Microsoft.App/containerApps@2025-01-01' existing = if (exists) {
  name: name
}

// Holds the app's place before the first `azd deploy`.
var placeholder = 'mcr.microsoft.com/azuredocs/containerapps-helloworld:latest'

output image string = exists ? app!.properties.template.containers[0].image : placeholder
output deployed bool = exists ? app!.properties.template.containers[0].image != placeholder : false
