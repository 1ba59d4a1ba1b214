// The network for private endpoints: one subnet for Container Apps, one for the endpoints.
param location string
param tags object
param token string

resource endpointsRules 'Microsoft.Network/networkSecurityGroups@2024-05-01' = {
  name: 'nsg-endpoints-${token}'
  location: location
  tags: tags
  properties: {
    securityRules: [
      {
        name: 'from-apps'
        properties: {
          priority: 100
          direction: 'Inbound'
          access: 'Allow'
          protocol: 'Tcp'
          sourceAddressPrefix: '10.0.0.0/23'
          sourcePortRange: '*'
          destinationAddressPrefix: '10.0.2.0/24'
          // Cosmos DB's gateway, and AMQP over TLS.
          destinationPortRanges: [
            '443'
            '5671'
          ]
        }
      }
      {
        name: 'nobody-else'
        properties: {
          priority: 4096
          direction: 'Inbound'
          access: 'Deny'
          protocol: '*'
          sourceAddressPrefix: '*'
          sourcePortRange: '*'
          destinationAddressPrefix: '*'
          destinationPortRange: '*'
        }
      }
    ]
  }
}

resource virtualNetwork 'Microsoft.Network/virtualNetworks@2024-05-01' = {
  name: 'vnet-${token}'
  location: location
  tags: tags
  properties: {
    addressSpace: {
      addressPrefixes: [
        '10.0.0.0/16'
      ]
    }
    subnets: [
      {
        name: 'apps'
        properties: {
          addressPrefix: '10.0.0.0/23'
          delegations: [
            {
              name: 'container-apps'
              properties: {
                serviceName: 'Microsoft.App/environments'
              }
            }
          ]
        }
      }
      {
        name: 'endpoints'
        properties: {
          addressPrefix: '10.0.2.0/24'
          // Without this the security group above does not apply to private endpoints.
          privateEndpointNetworkPolicies: 'Enabled'
          networkSecurityGroup: {
            id: endpointsRules.id
          }
        }
      }
    ]
  }
}

output networkId string = virtualNetwork.id
output appsSubnetId string = resourceId('Microsoft.Network/virtualNetworks/subnets', virtualNetwork.name, 'apps')
output endpointsSubnetId string = resourceId('Microsoft.Network/virtualNetworks/subnets', virtualNetwork.name, 'endpoints')
